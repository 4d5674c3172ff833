"""From logits to tokens: the pipeline that shapes distributions, and the random draws that draw from them."""
