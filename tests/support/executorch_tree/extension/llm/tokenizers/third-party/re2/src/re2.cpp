int re2_version() {
  return 2;
}
