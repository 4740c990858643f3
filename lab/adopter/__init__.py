"""A repository that adopts the gate, on a small runner of GitHub's workflows."""
