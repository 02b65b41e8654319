"""torchtitan: degrees of parallelism."""
