"""The jobs of tools/pipeline_kill_campaign.py, and what their tables must show."""
