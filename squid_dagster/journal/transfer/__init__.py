"""Export and import of a whole journal as a stream of lines."""
