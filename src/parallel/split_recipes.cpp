#include "parallel/split_recipes.h"

namespace precog {

Recipe resized_recipe(Recipe recipe, const Resized& resized) {
  for (RecipeOp& op : recipe.ops)
    for (RecipeTensor& tensor : op.outputs)
      for (const auto& [whole, part] : resized)
        if (tensor.shape == whole) {
          tensor.shape = part;
          break;
        }
  return recipe;
}

}  // namespace precog
