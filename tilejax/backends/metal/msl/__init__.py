"""Programs as Metal Shading Language. `source` reads a program, `kernel` and `block` hold what is written,
`steps` puts the barriers between, and the other files have a family of primitives each."""
