"""Notes of people in templates."""

from django import template

from webui import markdown

register = template.Library()
register.filter("markdown", markdown.rendered)
