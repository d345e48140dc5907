"""The pages. A Django app without models: views read through `queries`, figures are pure, scripts call the API."""
