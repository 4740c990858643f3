"""Apps and folders as they ship: APK, AAR, a folder of split APKs, a folder for Genie."""
