def get_qnn_library_version():
    return "2.37"
