"""Tables of counts at random that fit each other and the buffers, where nobody gave them."""
