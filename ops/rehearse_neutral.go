package ops

import "github.com/nextstate-rl/nextstate/schemas"

// neutralPrompts are everyday requests that no user's hints are about: the policy is to answer them as the model without an adapter does.
func neutralPrompts() []prompt {
	list := make([]prompt, len(neutralRequests))
	for i, text := range neutralRequests {
		list[i] = prompt{messages: []*schemas.Message{textMessage(schemas.Role_ROLE_USER, text)}}
	}
	return list
}

var neutralRequests = []string{
	"What should I pack for a weekend by the sea?",
	"Name three vegetables that grow well on a balcony.",
	"Why does bread dough need time to rise?",
	"Suggest a name for a small grey cat.",
	"What is the difference between a lake and a pond?",
	"How do I get a coffee stain out of a cotton shirt?",
	"Describe autumn in a park in a few words.",
	"Which muscles does swimming train?",
	"Give me an idea for a birthday present for my aunt.",
	"What does a lighthouse keeper do all day?",
	"How long should I boil an egg so that the yolk stays soft?",
	"Why do leaves change their colour?",
	"Write the first sentence of a story about a lost umbrella.",
	"What can I cook with rice, eggs and peas?",
	"How do bees find their way home?",
	"Is it better to run in the morning or in the evening?",
	"What is a good way to remember new names?",
	"Explain what a library card is for.",
	"How often should I water a cactus?",
	"What makes a good handshake?",
	"Tell me something about the moon.",
	"Which tools do I need to hang up a picture?",
	"How can I fall asleep faster?",
	"What is the use of a thesaurus?",
	"Recommend a quiet hobby for long train rides.",
	"Why is the sea salty?",
	"How do I write a short thank-you note to a neighbour?",
	"What do penguins eat?",
	"How can I keep my keys from getting lost?",
	"What is the best season to plant an apple tree?",
	"Describe the smell of rain to someone who never noticed it.",
	"How do I choose a ripe melon?",
	"What should I say when I arrive late at a meeting?",
	"Why do cats purr?",
	"Give me a rule of thumb for tipping in a café.",
	"How does a bicycle stay upright?",
}
