"""The commands of `raggedspec sim`, by what they work on."""
