"""Settings of the documentation site: `make docs` builds it from the whole repository.

The source folder is the root of the repository, so a link between two Markdown files is the same
link on the site and in a plain view of the repository.
"""

import sys
from pathlib import Path

import phnn

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "phnn"
author = "The phnn authors"
copyright = "The phnn authors"
version = release = phnn.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "mathml",
    "navigation",
    "reference",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "results/*.md",
    "results/*/results.md",
    "benchmarks/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
]
exclude_patterns = ["docs/_site", "docs/conf.py"]
nitpicky = False  # torch and Lightning have no inventory on disk

# Markdown as the repository shows it
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# notebooks hold no outputs: they are executed here, and again only when they change
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Shape", "params_style")]
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
default_role = "py:obj"
add_module_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"phnn {release}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_search_summary = True
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

linkcheck_anchors = False
linkcheck_timeout = 20
