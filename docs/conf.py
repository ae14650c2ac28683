"""How Sphinx makes the site of this folder's pages: `just docs`."""

project = "The single controller"
author = "The single controller authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "source_repository": "https://github.com/single-controller/single-controller",
    "source_branch": "main",
    "source_directory": "docs/",
}
myst_heading_anchors = 3

# Docstrings put code in single backticks; what has an entry here becomes a link.
default_role = "py:obj"
suppress_warnings = ["ref.python"]  # `.get()` is a method of several classes
autodoc_default_options = {"members": True, "member-order": "bysource"}
napoleon_use_ivar = True
