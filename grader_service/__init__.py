"""The stateless grader: review tasks, their answer keys, and the rubrics that score submissions."""
