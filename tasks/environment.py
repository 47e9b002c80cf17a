"""The settings of third-party programs that are taken from the environment; the only file that sets them.

Imported by tasks/__init__.py and flows/__init__.py, so that it runs before prefect, mlflow and dvc are imported.
A value that the user set is kept.
"""

import os

SETTINGS = {
    "DO_NOT_TRACK": "true",  # MLflow takes only this word, "1" is ignored
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # each of some forty migrations of a new database is a line else
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # the default of 7 stalls a caller for minutes where the server is down
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 s is too short for the first migration on a busy machine
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",  # the embedded server logs tracebacks when it is stopped at exit
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",  # the default is pickle
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
