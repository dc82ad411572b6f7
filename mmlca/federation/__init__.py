"""The part of one hospital in a federated study."""
