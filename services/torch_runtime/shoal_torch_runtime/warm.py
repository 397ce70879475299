"""What a runtime imports while serving, imported before it is forked."""

from __future__ import annotations

import transformers
import transformers.models.bert.modeling_bert
import transformers.models.distilbert.modeling_distilbert
import transformers.models.modernbert.modeling_modernbert
import transformers.models.roberta.modeling_roberta
import transformers.models.xlm_roberta.modeling_xlm_roberta


def quieten() -> None:
    """Keeps transformers from drawing progress bars and load reports; what matters of them is raised as LoadError."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
