"""From logits to tokens: the pipeline that makes distributions, and the random source that samples from them."""
