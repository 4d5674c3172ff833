"""Proofs of losslessness: exact enumeration through the production code, and the models it runs on."""
