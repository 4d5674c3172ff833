"""The one loop, and what joins the parts around it."""
