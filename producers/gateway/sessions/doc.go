// Package sessions says which session and which turn a chat request is, and makes the events of it. No HTTP.
package sessions
