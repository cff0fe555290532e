"""The jobs of campaigns/pipeline_kill_campaign.py, and what their tables must show."""
