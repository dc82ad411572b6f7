"""Local models that come with the package, beside whatever follows the protocol."""
