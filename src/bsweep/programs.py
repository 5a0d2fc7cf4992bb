"""The former name of `bsweep.external`, under which scripts may still import its adapters."""

from bsweep.external import __path__ as __path__
