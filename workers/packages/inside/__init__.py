"""What runs in a package's own interpreter. It uses the standard library alone, and imports itself by relative names:
the interpreter has none of the product's packages, and foreign code finds none of the product's modules."""
