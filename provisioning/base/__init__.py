"""The packages that all others use: errors, command line, settings, findings, files, progress, rendering."""
