"""Sphinx configuration. `make docs` builds everything without a network."""

from typing import Any

import jax

import proxlin

project = "proxlin"
author = "The proxlin authors"
copyright = author
version = release = proxlin.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # copies MathJax 3 to _static/mathjax and points mathjax_path there
]
exclude_patterns = ["_build"]

# Markdown
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3


# The gallery: scripts that run when the docs are built
def reset_precision(gallery_conf: Any, script: Any) -> None:
    """Each script starts with JAX's default precision, whatever the last one has set."""
    jax.config.update("jax_enable_x64", False)


sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib", reset_precision),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e9,  # times of a machine that nobody knows, on a page that loads scripts
    "write_computation_times": False,
    "capture_repr": (),
}
suppress_warnings = ["config.cache"]  # the function above cannot be pickled

# Docstrings
add_module_names = False
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False

# Mathematics; the vendored MathJax is version 3
mathjax3_config = {
    "tex": {
        "macros": {
            "reals": r"\mathbb{R}",
            "argmin": r"\mathop{\mathrm{arg\,min}}",
            "argmax": r"\mathop{\mathrm{arg\,max}}",
            "prox": r"\operatorname{prox}",
        }
    }
}

# HTML
html_theme = "furo"
html_title = f"proxlin {release}"
html_copy_source = False
html_show_sphinx = False


def skip_member(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out what Python generates: the fields of named tuples described as field number 0."""
    doc = getattr(obj, "__doc__", None) or ""
    return True if doc.startswith("Alias for field number") else None


# Types as they are written in the source, where autodoc prints what they stand for.
SHORTER = {
    "~jax.jaxlib._jax.Array | ~numpy.ndarray | ~numpy.bool | ~numpy.number"
    " | bool | int | float | complex": "ArrayLike",
    "~jax.jaxlib._jax.Array": "Array",
    "jaxlib._jax.Array": "Array",
    "~jaxtyping.": "",
    "jaxtyping.": "",
    "Callable[[...], ": "Callable[..., ",
}


def shorten_types(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Abbreviates the types in a signature."""

    def shorten(text: str | None) -> str | None:
        for long, short in SHORTER.items():
            text = text and text.replace(long, short)
        return text

    return shorten(signature), shorten(returns)


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("autodoc-skip-member", skip_member)
