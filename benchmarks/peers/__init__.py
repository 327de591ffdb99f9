"""Other people's servers, at their best here, with the same work to do."""
