"""Golden programs: contexts that earlier QNN builds made, loaded and run by later ones."""
