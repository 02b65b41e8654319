"""The formats that Loadmaster reads. Each file here registers readers, and is all that a new
reader needs.

:func:`loadmaster.readers.registry.discover` imports every file here. A file imports what reading
takes within its functions, so that a graph of one format is read without what the others need.
"""
