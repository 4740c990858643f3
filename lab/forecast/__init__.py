"""How the constants of forecasts are fitted, to what AI Hub measured on phones."""
