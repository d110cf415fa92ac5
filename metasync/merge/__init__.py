"""Three-way merge of trees and of text, and what differs between trees: pure."""
