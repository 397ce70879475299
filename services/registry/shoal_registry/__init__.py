"""The registry: which models, aliases and lanes there are, kept in a bucket by the replica that holds the lease."""
