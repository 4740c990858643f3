"""What every package stands on: errors, command line, settings, findings, files, progress, rendering."""
