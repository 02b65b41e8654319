"""OpenVINO's HETERO plugin: affinities."""
