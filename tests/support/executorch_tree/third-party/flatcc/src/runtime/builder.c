/* The length of a schema's or a program's identifier. */
int flatcc_identifier_size(void) {
  return 4;
}
