"""One file a method family; `catalog` lists the methods, `registry` builds them."""
