"""From logits to tokens: the pipeline that shapes laws, and the coins that draw from them."""
