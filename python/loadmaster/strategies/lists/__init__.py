"""List schedulers: ops in an order, each on the device where it finishes earliest."""
