"""Models and data by name: ``open_model`` in models.py and ``open_data`` in data.py, one FORMS registry each."""
