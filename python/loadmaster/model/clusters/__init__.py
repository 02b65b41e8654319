"""Parts of a cluster: devices, links, their tables in TOML, presets, and changes to one."""
