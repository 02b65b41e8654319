"""The formats that Loadmaster reads: each file here registers readers.

:func:`loadmaster.readers.registry.discover` imports every file here. A file says how a format is
recognised, and names the function that reads it. The function is imported when a file of its format
is read, so that a graph of one format is read without what the others need.
"""
