"""The healthy training that every case starts from."""
