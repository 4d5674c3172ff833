"""How much to draft: the cost model, acceptance estimates and the allocation of draft nodes."""
