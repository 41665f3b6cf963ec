"""Why the bits agree: the order of samples, the lanes, the tree they are summed in, what is pinned."""
