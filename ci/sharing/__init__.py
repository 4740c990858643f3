"""How machines share what is cached: who signed it, by which server it comes, what a run packs to push."""
