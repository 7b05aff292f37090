package cli

import "net/url"

// masked hides the password in a URL that is shown.
func masked(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(not shown: it does not parse)"
	}
	return u.Redacted()
}
