"""Why the bits agree: the order of samples, lanes, the tree that sums them, what is pinned."""
