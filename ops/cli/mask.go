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

// playURL is ClickHouse's own query page; it asks for the password.
func playURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unknown)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/play"}).String()
}
